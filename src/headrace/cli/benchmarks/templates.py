"""Chat templates in the formats of model families, written for the benchmarks: what their turns look like, no tools."""

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LLAMA_2 = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}<s>[INST] <<SYS>>\n{{ message.content }}\n<</SYS>>\n\n"
    "{% elif message.role == 'user' %}{{ '' if loop.index0 == 1 else '<s>[INST] ' }}{{ message.content }} [/INST]"
    "{% else %} {{ message.content }} </s>{% endif %}"
    "{% endfor %}"
)
_LLAMA_3 = (
    "<|begin_of_text|>{% for message in messages %}"
    "<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content | trim }}<|eot_id|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_MISTRAL = (
    "<s>{% for message in messages %}"
    "{% if message.role == 'system' %}[INST] {{ message.content }}\n\n"
    "{% elif message.role == 'user' %}{{ '' if loop.index0 == 1 else '[INST] ' }}{{ message.content }}[/INST]"
    "{% else %} {{ message.content }}</s>{% endif %}"
    "{% endfor %}"
)
_GEMMA = (
    "<bos>{% for message in messages %}"
    "{% if message.role == 'system' %}<start_of_turn>user\n{{ message.content }}\n\n"
    "{% elif message.role == 'user' %}{{ '' if loop.index0 == 1 else '<start_of_turn>user\n' }}"
    "{{ message.content | trim }}<end_of_turn>\n"
    "{% else %}<start_of_turn>model\n{{ message.content | trim }}<end_of_turn>\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_PHI_3 = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_ZEPHYR = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_VICUNA = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content }} "
    "{% elif message.role == 'user' %}USER: {{ message.content }} "
    "{% else %}ASSISTANT: {{ message.content }}</s>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
_DEEPSEEK = (
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content }}"
    "{% elif message.role == 'user' %}<\uff5cUser\uff5c>{{ message.content }}"
    "{% else %}<\uff5cAssistant\uff5c>{{ message.content }}<\uff5cend\u2581of\u2581sentence\uff5c>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<\uff5cAssistant\uff5c>{% endif %}"
)
_GRANITE = (
    "{% for message in messages %}"
    "<|start_of_role|>{{ message.role }}<|end_of_role|>{{ message.content }}<|end_of_text|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
)
_COMMAND_R = (
    "<BOS_TOKEN>{% for message in messages %}<|START_OF_TURN_TOKEN|>"
    "{{ {'system': '<|SYSTEM_TOKEN|>', 'user': '<|USER_TOKEN|>'}.get(message.role, '<|CHATBOT_TOKEN|>') }}"
    "{{ message.content | trim }}<|END_OF_TURN_TOKEN|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
)
_FALCON = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content | trim }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)

TEMPLATES = {
    "Qwen (ChatML)": _CHATML,
    "Llama 2": _LLAMA_2,
    "Llama 3": _LLAMA_3,
    "Mistral instruct": _MISTRAL,
    "Gemma": _GEMMA,
    "Phi-3": _PHI_3,
    "Zephyr": _ZEPHYR,
    "Vicuna": _VICUNA,
    "DeepSeek": _DEEPSEEK,
    "Granite": _GRANITE,
    "Command-R": _COMMAND_R,
    "Falcon": _FALCON,
}
"""By family. Each renders an earlier turn as a prefix of every later one, as real templates without tools do."""
