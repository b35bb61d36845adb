"""How long models take, and how sure that is: interleaved runs, paired intervals, and an honest "no difference"."""
