"""What runs a request: the live server (`engine`) and instances in processes (`workers`)."""
