"""Replay: segments stay in the store after their first use, and the learner samples units of them.

A unit is a transition of n steps or a sequence (``units``, ``windows``). ``buffer`` is all of it as one thing:
``columns`` holds the tensors in memory-mapped rings and ``blocks`` the images beside them, a page a segment
(``page_layout``, ``pages``); ``snapshot`` says what a restart finds. ``offers`` knows which units may be drawn and how
often each was used; ``sum_tree`` and ``selectors`` draw them; ``limiter`` paces inserts and samples.
"""
