"""Parts of convolutions that take several launches: Winograd's stages, engines that add, groups in turn."""
