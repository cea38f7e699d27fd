"""Each option that several surfaces have, declared once."""
