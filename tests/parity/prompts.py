"""Two hundred prompts of the kinds that people run: questions, rewriting, lists, code, numbers, several scripts."""

from __future__ import annotations

TASKS = [
    "Explain {} to a child of ten.",
    "Write two sentences about {}.",
    "List three facts about {}, numbered.",
    "What do people often get wrong about {}? Answer briefly.",
    "Write a headline for an article on {} published in 2024, and its first sentence.",
    "Give a question with four choices on {} and say which is right.",
    "Translate into French: 'I would like to know more about {}.'",
    "Return a JSON object with the keys \"topic\" and \"summary\" for {}.",
    "Compare {} with its opposite in one paragraph; use exactly 2 examples.",
    "Rewrite politely:   tell me about {} now!!",
]  # fmt: skip
TOPICS = [
    "photosynthesis", "the French Revolution", "prime numbers", "how bread rises", "Newton's third law", "jazz music",
    "the water cycle", "sorting algorithms in Python", "compound interest at 3.5%", "whales & dolphins", "volcanoes",
    "the naïve Bayes classifier", "black holes", "the city of Zürich", "learning to swim", "vaccines", "chess openings",
    "printing in 1450", "the Moon's 29.5-day cycle", "東京の天気",
]  # fmt: skip


def prompts(count: int = 200) -> list[str]:
    """The first `count` of task x topic, topics varying fastest."""
    return [task.format(topic) for task in TASKS for topic in TOPICS][:count]
