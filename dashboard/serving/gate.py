"""The first thing that a page does: show nothing before a login by OIDC, and offer the way out of any."""

from __future__ import annotations

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from dashboard.serving import granted, oidc
from dashboard.serving.binding import from_environment


def require_login() -> None:
    """Stop the page, before it looks at anything, unless whoever looks at it is let in.

    A password is asked for by the guard, which lets nobody come this far without it.
    """
    binding = from_environment()
    if binding is None or not binding.login:
        return
    if binding.login == "oidc":
        context = get_script_run_ctx()
        session = context.session_id if context else ""
        why = oidc.refused(st.user.to_dict(), binding.users) if st.user.is_logged_in else "Log in to see this gapscope."
        if why:
            granted.withdraw(session)
            st.title("gapscope")
            st.write(why)
            st.button("Log in", on_click=st.login, type="primary")
            st.stop()
        granted.grant(session)
        st.sidebar.button("Log out", on_click=st.logout, icon=":material/logout:", type="tertiary")
    else:
        st.sidebar.html('<a href="/logout" target="_self">Log out</a>')
