"""The devices of a node: how they are looked at, whether they are healthy, and which agent may use them."""
