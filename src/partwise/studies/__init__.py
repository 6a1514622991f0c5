"""Published claims and the comparisons that check them."""
