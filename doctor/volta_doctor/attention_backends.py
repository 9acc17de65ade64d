"""Attention libraries that no Volta card runs, by the names that vLLM and SGLang have for them."""

# flash-attn needs sm_80, FlashInfer sm_75.
NEWER_GPU = {
    "FLASH_ATTN": "flash-attn",
    "FLASH_ATTN_VLLM_V1": "flash-attn",
    "FLASHATTN": "flash-attn",
    "FLASHMLA": "FlashMLA",
    "FA3": "flash-attn",
    "FA4": "flash-attn",
    "FLASHINFER": "FlashInfer",
    "FLASHINFER_VLLM_V1": "FlashInfer",
    "FLASHINFER_MLA": "FlashInfer",
}
