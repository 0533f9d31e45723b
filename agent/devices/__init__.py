"""The devices of a node: who looks at them, whether they are healthy, and which agent may use them."""
