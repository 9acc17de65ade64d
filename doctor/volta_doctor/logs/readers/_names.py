"""What readers call what a text does not name: parts of the same name are put together."""

ENVIRONMENT = "the Python environment"
SERVER = "the server"
