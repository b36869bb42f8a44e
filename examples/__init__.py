"""Examples of loadmanager beside other systems; not part of the installed package."""
