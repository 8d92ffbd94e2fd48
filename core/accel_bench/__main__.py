"""Entry point of the program `accel-bench`, also started by `python -m accel_bench`."""

import gc

OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""Number of new objects between two garbage collections, more than imports create. Collections
would take half of the time of a short command."""


def main() -> None:
    """Run the program `accel-bench`; skip Python's garbage collection at exit, to end sooner."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    from accel_bench.cli.main import main as run

    try:
        run()
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
