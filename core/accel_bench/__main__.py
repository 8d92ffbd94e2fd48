"""The program `accel-bench`, which `python -m accel_bench` is too."""

import gc

OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""How many objects are made before garbage is looked for: imports, half of the time of a short
command, leave none."""


def main() -> None:
    """Run the program. Modules are not taken apart when it ends: the operating system does it."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    from accel_bench.cli.main import main as run

    try:
        run()
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
