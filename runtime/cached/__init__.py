"""The modules that `chunkform.compile` keeps on disk, by the names of their files.

A pickled op, or a layer that has one, is found here by another process, as long as its file is in the cache folder.
"""

from __future__ import annotations

from chunkform.runtime.launch.files import cache_folder

__path__ = [str(cache_folder())]
