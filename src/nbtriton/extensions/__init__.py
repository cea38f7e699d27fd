"""What is found by entry points and nothing else of nbtriton imports: each folder can be left unread, or out."""
