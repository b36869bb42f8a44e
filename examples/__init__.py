"""What shows loadmanager at work beside other systems; no part of the package that is installed."""
