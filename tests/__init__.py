"""The tests are a package with a file: of another one a load of `model.py` looks at each module, as it may be beside it."""
