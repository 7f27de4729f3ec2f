"""Other libraries' ways of calling the operator.

Not here: the operator. Nothing is imported from another library before a function here is called.
"""

from steadysum.compat.architectures import ARCHITECTURES, Logits
from steadysum.compat.transformers import TransformersPatch, patch_transformers

__all__ = ["ARCHITECTURES", "Logits", "TransformersPatch", "patch_transformers"]
