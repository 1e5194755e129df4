"""The page of a gallery: a web page and a JSON interface to search, backfill and go back.

What a gallery does is not here, but in the modules above. Nothing here is imported unless
``unibct gallery serve`` runs; FastAPI and uvicorn come with the extra ``serve``.
"""
