"""From a request's head to its endpoint: identify, classify, locate, admit, queue, select."""
