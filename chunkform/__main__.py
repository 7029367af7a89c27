"""`python -m chunkform`: the command line, for where the program `chunkform` isn't on the path."""

from chunkform.codegen.commands.cli import app

if __name__ == "__main__":
    app(prog_name="chunkform")
