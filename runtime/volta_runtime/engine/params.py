"""How one request wants its tokens chosen."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SamplingParams:
    """Ranges are checked where requests enter; meanings are those of the OpenAI API and vLLM.

    max_tokens: upper bound of generated tokens. temperature: 0 means greedy. top_k: 0 means all.
    top_p, min_p: nucleus mass, and least probability relative to the likeliest token.
    presence_penalty, frequency_penalty: subtracted from the logits of tokens generated so far,
    once or per occurrence. repetition_penalty: divides positive and multiplies negative logits of
    tokens in the prompt or the output. stop: strings that end the text and are left out of it.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False

    @property
    def penalises(self) -> bool:
        """Whether logits depend on the tokens so far."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)

    @property
    def greedy(self) -> bool:
        """Whether the next token is simply the one with the largest logit."""
        return self.temperature == 0 and not self.penalises
