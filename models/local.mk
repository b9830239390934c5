## The default model is installed; its golden results are only for the tests.
nanodir = $(pkgdatadir)/models/nano
dist_nano_DATA  = models/nano/chat_template.jinja
dist_nano_DATA += models/nano/config.json
dist_nano_DATA += models/nano/generation_config.json
dist_nano_DATA += models/nano/model-00001-of-00004.safetensors
dist_nano_DATA += models/nano/model-00002-of-00004.safetensors
dist_nano_DATA += models/nano/model-00003-of-00004.safetensors
dist_nano_DATA += models/nano/model-00004-of-00004.safetensors
dist_nano_DATA += models/nano/model.safetensors.index.json
dist_nano_DATA += models/nano/tokenizer.json
dist_nano_DATA += models/nano/tokenizer_config.json

drafterdir = $(nanodir)/dflash
dist_drafter_DATA  = models/nano/dflash/config.json
dist_drafter_DATA += models/nano/dflash/model.safetensors

EXTRA_DIST += models/nano/golden
