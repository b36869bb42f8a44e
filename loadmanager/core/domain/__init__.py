"""Names, bundles, ownership, policies, controls, settings, plans and reasons."""
