"""How every process of SharePod begins and ends, and how it shows itself. It knows no share, device or pod."""
