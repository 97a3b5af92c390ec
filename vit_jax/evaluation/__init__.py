"""Evaluators: functions from parameters to metrics."""
