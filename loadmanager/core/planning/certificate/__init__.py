"""What no plan can beat, and what any plan has to move, of a cluster as columns; and how near to it a plan comes."""
