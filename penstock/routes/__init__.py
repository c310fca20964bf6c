"""Routes: the kinds of request that the fleet accepts, as policy describes them."""
