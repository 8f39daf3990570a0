"""Objectives and corrections as pure tensor maths: no IO, no clock, no randomness but a passed generator."""
