## The unit and the completions, made from what the program says of itself.
systemddir = $(prefix)/lib/systemd/system
nodist_systemd_DATA = systemd/laguna-offload.service
dist_systemd_DATA = systemd/laguna-offload.socket
EXTRA_DIST += systemd/laguna-offload.service.in

systemd/laguna-offload.service: systemd/laguna-offload.service.in Makefile
	$(AM_V_GEN)$(MKDIR_P) systemd && \
	sed 's|@bindir@|$(bindir)|' $(srcdir)/systemd/laguna-offload.service.in >$@

bashcompdir = $(datadir)/bash-completion/completions
zshcompdir = $(datadir)/zsh/site-functions
nodist_bashcomp_DATA = systemd/laguna-offload
nodist_zshcomp_DATA = systemd/_laguna-offload
CLEANFILES += systemd/laguna-offload systemd/_laguna-offload systemd/laguna-offload.service

systemd/laguna-offload: laguna-offload$(EXEEXT)
	$(AM_V_GEN)$(MKDIR_P) systemd && ./laguna-offload --completion bash >$@
systemd/_laguna-offload: laguna-offload$(EXEEXT)
	$(AM_V_GEN)$(MKDIR_P) systemd && ./laguna-offload --completion zsh >$@
