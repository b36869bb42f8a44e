"""A small, real Apache Pulsar on this machine, with an unbalanced load.

`python -m examples.pulsar` runs one until Ctrl-C. It needs Linux, a JDK of version 17 or newer, Maven, and Maven
Central for the first run.
"""
