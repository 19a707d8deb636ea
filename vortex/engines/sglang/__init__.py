"""SGLang as the host of a flow: `--attention-backend vortex`. Importing this imports no SGLang."""
