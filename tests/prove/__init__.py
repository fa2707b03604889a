"""The proofs behind the promises: each module is one, run by `make prove NAME`.

A proof has a docstring whose first line says what it proves, and `run(short, seed) -> Report`: short is the
form for every change (a minute or two), seed fixes what is random. Packages here hold what proofs share.
"""
