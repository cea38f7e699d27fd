"""What runs an exported repository elsewhere: KServe and Triton's Helm chart on Kubernetes, Ray Serve.

A platform is a call with the repository, the names of its models and the value of its option; it returns the
files that are written beside them.
"""
