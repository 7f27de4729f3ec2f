"""What the architectures of transformers do to logits between a model's head and its loss, as data.

Not here: the patch that needs to know it (transformers.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from torch import nn

__all__ = ["ARCHITECTURES", "Logits"]


@dataclass(frozen=True)
class Logits:
    """What a forward does to its head's output before the loss: times, or over, a factor; then a softcap.

    Each is the dotted name of an attribute of the model, as the forward reads it; None: there is no such step.
    """

    times: str | None = None
    over: str | None = None
    softcap: str | None = None  # softcap * tanh(logits / softcap); the attribute may be None: no softcap

    def values(self, model: nn.Module) -> tuple[float, float | None]:
        """The model's scale and softcap now."""
        scale = 1.0
        if self.times is not None:
            scale *= float(attrgetter(self.times)(model))
        if self.over is not None:
            scale /= float(attrgetter(self.over)(model))
        softcap = None if self.softcap is None else attrgetter(self.softcap)(model)
        return scale, None if softcap is None else float(softcap)


# By the class whose forward a model runs. Each entry is tested against the class itself (tests/compat): the same loss
# and gradients. Left out, since their forwards do more than this: Bamba (a loss of the logits themselves), Inkling
# (drops columns), musicgen and moshi (several heads), and all that don't take their loss from self.loss_function.
UNTOUCHED: Final = """
    GPT2LMHeadModel ApertusForCausalLM ArceeForCausalLM BitNetForCausalLM BloomForCausalLM CwmForCausalLM
    DiffLlamaForCausalLM Emu3ForCausalLM Ernie4_5ForCausalLM Ernie4_5_MoeForCausalLM Exaone4ForCausalLM
    FalconForCausalLM FlexOlmoForCausalLM GemmaForCausalLM GlmForCausalLM Glm4ForCausalLM Glm4MoeForCausalLM
    GPTBigCodeForCausalLM GPTJForCausalLM GPTNeoForCausalLM GPTNeoXForCausalLM GptOssForCausalLM HeliumForCausalLM
    HunYuanDenseV1ForCausalLM Lfm2ForCausalLM LlamaForCausalLM MambaForCausalLM MinistralForCausalLM
    MistralForCausalLM MixtralForCausalLM NemotronForCausalLM OlmoForCausalLM Olmo2ForCausalLM Olmo3ForCausalLM
    OlmoeForCausalLM OPTForCausalLM PersimmonForCausalLM PhiForCausalLM Phi3ForCausalLM PhimoeForCausalLM
    Qwen2ForCausalLM Qwen2MoeForCausalLM Qwen3ForCausalLM Qwen3MoeForCausalLM SeedOssForCausalLM SmolLM3ForCausalLM
    StableLmForCausalLM Starcoder2ForCausalLM
""".split()  # noqa: SIM905  a list of 47 lines hides the rows below
ARCHITECTURES: Final[dict[str, Logits]] = {
    **dict.fromkeys(UNTOUCHED, Logits()),
    "CohereForCausalLM": Logits(times="logit_scale"),
    "Cohere2ForCausalLM": Logits(times="logit_scale"),
    "FalconH1ForCausalLM": Logits(times="model.lm_head_multiplier"),
    "GraniteForCausalLM": Logits(over="config.logits_scaling"),
    "GraniteMoeForCausalLM": Logits(over="config.logits_scaling"),
    "GraniteMoeSharedForCausalLM": Logits(over="config.logits_scaling"),
    "Gemma2ForCausalLM": Logits(softcap="config.final_logit_softcapping"),
    "Gemma3ForCausalLM": Logits(softcap="config.final_logit_softcapping"),
    "VaultGemmaForCausalLM": Logits(softcap="config.final_logit_softcapping"),
    "NanoChatForCausalLM": Logits(softcap="config.final_logit_softcapping"),
    "RecurrentGemmaForCausalLM": Logits(softcap="config.logits_soft_cap"),
}
