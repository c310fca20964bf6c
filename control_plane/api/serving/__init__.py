"""The connections of the API: who holds how many, from where, and the threads that work for them."""
