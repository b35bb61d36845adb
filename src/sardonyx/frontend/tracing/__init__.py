"""How a module becomes a graph whose nodes know who ran them, and how the module answers for the proof."""
