"""What leaves a page: Markdown for a review comment, files of rows, and what a page drew to make them from.

Nothing here imports Streamlit: the command line writes the same words.
"""
