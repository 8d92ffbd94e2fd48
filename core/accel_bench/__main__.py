"""`python -m accel_bench` is the same program as `accel-bench`."""

from accel_bench.cli.main import main

if __name__ == "__main__":
    main()
