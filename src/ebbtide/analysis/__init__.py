"""What a step does with memory, from its trace alone: the study "Pinpointing the Memory Behaviors of DNN Training"
(ISPASS'21) as functions. Pure: no torch, no clock, no files.

``columns`` holds a trace's storages as columns; ``memory`` says how much is there at each tick, idle or in use, and
what the peak is made of; ``intervals`` has access-time intervals (ATIs) and their distribution; ``swapping`` the swap
rule, each interval alone and all of them in a queue; ``curves`` what more moves or a faster link would buy;
``patterns`` whether and how steps repeat; ``summary`` gathers it all
(``terminal`` shows it as a page) and ``explain`` says it of one storage in words, with ``explain_plan`` for a plan.
"""
