"""What `streamlit run dashboard/app.py` does, for tests without a browser."""

from dashboard.app import main

main()
