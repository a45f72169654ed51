"""Figures and tables, each drawn together with its identity strip."""
