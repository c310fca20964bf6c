"""What follows a failed attempt: another one, or the refusal for the client; and how many retries are permitted."""
