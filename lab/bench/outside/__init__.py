"""Load generators of others, AIPerf and `vllm bench serve`, drive Penstock and other routers, and measure them."""
