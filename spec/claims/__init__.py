"""What five documents claim about recurrences and attention, formula by formula as they display it; one file each."""

from __future__ import annotations

from chunkform.spec.language.claims import Document


def documents() -> list[Document]:
    """The documents, in order."""
    from . import inverse_attention, lightning_attention

    return [inverse_attention.DOCUMENT, lightning_attention.DOCUMENT]
