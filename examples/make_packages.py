"""Makes the example networks that are too large for the repository, from 37 MB of wheels.

    python -m examples.make_packages
"""

from examples import make_magika, make_minilm


def main() -> None:
    make_minilm.main()
    make_magika.main()


if __name__ == "__main__":
    main()
