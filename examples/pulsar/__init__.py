"""A small, real Apache Pulsar on this machine, with a load that its brokers share unevenly.

`python -m examples.pulsar` runs one until Ctrl-C. Needs Linux, a JDK of version 17 or newer, Maven, and Maven Central
the first time.
"""
