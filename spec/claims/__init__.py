"""What five documents claim about recurrences and attention, formula by formula as they display it; one file each.

`codegen/paper` reads documents as their authors wrote them; here the formulas are typed in, as its tests compare with.
"""

from __future__ import annotations

from chunkform.spec.language.claims import Document


def documents() -> list[Document]:
    """The documents, in order."""
    from . import dual_form, inverse_attention, lightning_attention, mesa, self_attention

    return [m.DOCUMENT for m in (inverse_attention, mesa, lightning_attention, self_attention, dual_form)]
