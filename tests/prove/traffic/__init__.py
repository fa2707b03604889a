"""What proofs share: a whole gateway, callers that know what they got, and the books to hold against it."""
