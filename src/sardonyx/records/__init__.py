"""What every verb answers, as plain frozen data, and the JSON it is written as."""
