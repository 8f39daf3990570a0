"""Objectives and corrections as pure tensor maths: no IO, no clock, no randomness but the generator that is passed."""
